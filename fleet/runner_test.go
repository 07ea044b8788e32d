package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// A run claims the memory that its machine will have, even if a custom image of this host's user determines it. Such an
// image may have a bundled one's name.
func TestMemoryOfOwnImages(t *testing.T) {
	home := testdir.Private(t)
	own := filepath.Join(home, "own")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, memory := range map[string]string{"python": "2048", "words": "3072", "small": "256"} {
		text := `{"schema": 1, "name": "` + name + `", "from": "python", "arch": "` + string(unitask.HostArch()) +
			`", "memoryMb": ` + memory + `}`
		if err := os.WriteFile(filepath.Join(own, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	c, err := policy.ParseCeiling("c.toml",
		[]byte("images = [\"node\", \"python\", \"words\", \"small\", \"shipped\"]\nmemoryMb = 2500\n"))
	if err != nil {
		t.Fatal(err)
	}
	along := &catalog.Shipped{Arch: unitask.HostArch(), Disk: strings.Repeat("ab", 32), Size: 512,
		Custom: &image.ShippedCustom{Base: "python"}}
	for _, row := range []struct {
		req   unitask.Request
		image *catalog.Shipped
		want  int
	}{
		{unitask.Request{Image: "node"}, nil, policy.DefaultMemoryMB},
		{unitask.Request{Image: "python"}, nil, 2048},
		{unitask.Request{Language: "python"}, nil, 2048},
		{unitask.Request{Image: "words"}, nil, 2500},
		{unitask.Request{Image: "words", MemoryMB: 256}, nil, 256},
		{unitask.Request{Image: "small"}, nil, 256},
		{unitask.Request{Image: "nothing"}, nil, policy.DefaultMemoryMB},
		{unitask.Request{Image: "small"}, along, policy.DefaultMemoryMB},
		{unitask.Request{Image: "words"}, along, policy.DefaultMemoryMB},
		{unitask.Request{Image: "words", Language: "python"}, along, policy.DefaultMemoryMB},
		{unitask.Request{Image: "small", MemoryMB: 300}, along, 300},
	} {
		job := task{Request: row.req, Image: row.image}
		if got := OnHost(rt, c).MemoryMB("alice", job.here("alice")); got != row.want {
			t.Errorf("%+v takes %d MiB, not %d", job, got, row.want)
		}
	}
}
