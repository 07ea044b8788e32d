package fleet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// A run takes the memory that its machine will have: also where that is what an image of this host's user's own says,
// which may have the name of one that comes along.
func TestMemoryOfOwnImages(t *testing.T) {
	home := t.TempDir()
	own := filepath.Join(home, "own")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, memory := range map[string]string{"python": "2048", "words": "3072"} {
		text := `{"schema": 1, "name": "` + name + `", "from": "python", "arch": "` + string(unitask.HostArch()) + `", "memoryMb": ` + memory + `}`
		if err := os.WriteFile(filepath.Join(own, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	c, err := policy.ParseCeiling("c.toml", []byte("images = [\"node\", \"python\", \"words\"]\nmemoryMb = 2500\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		req  unitask.Request
		want int
	}{
		{unitask.Request{Image: "node"}, policy.DefaultMemoryMB},
		{unitask.Request{Image: "python"}, 2048},
		{unitask.Request{Language: "python"}, 2048},
		{unitask.Request{Image: "words"}, 2500},
		{unitask.Request{Image: "words", MemoryMB: 256}, 256},
		{unitask.Request{Image: "nothing"}, policy.DefaultMemoryMB},
	} {
		if got := OnHost(rt, c).MemoryMB("alice", row.req); got != row.want {
			t.Errorf("%+v takes %d MiB, not %d", row.req, got, row.want)
		}
	}
}
