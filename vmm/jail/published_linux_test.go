package jail

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/unitask/unitask/policy"
)

// docs/security.md gives the jail's numbers as in the code. Its system calls are those of amd64.
func TestPublishedNumbers(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	limits := len(limitTable) + len(controls)
	want := []string{
		fmt.Sprintf("tries %d things", len(attacks)),
		fmt.Sprintf("%d attempts from inside the jail", len(attacks)),
		fmt.Sprintf("%d layers and %d limits around QEMU", len(policy.JailNames)-limits, limits),
	}
	if runtime.GOARCH == "amd64" {
		any, some := len(calls)+len(moreCalls)+len(executing), len(conditionals(Spec{}))+1 // execve
		want = append(want, fmt.Sprintf("%d system calls of the kernel with any arguments (TCG), %d with some", any, some))
	}
	for _, text := range want {
		if !strings.Contains(string(page), text) {
			t.Errorf("docs/security.md does not say %q", text)
		}
	}
}
