// Command cover prints the statement coverage of the packages that read hostile data, by the short tests of the whole
// repository. It fails if the coverage is below a minimum.
//
//	go run ./hack/cover [-list ROOM]
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/unitask/unitask/"

// rooms are the measured packages.
var rooms = []string{"policy", "netstack", "image/tfs", "guest", "record"}

// others are the packages that use them, whose tests count too.
var others = []string{"", "cli", "internal/hostfiles", "image", "mcp"}

// least is the minimum coverage of each package, in percent.
const least = 90

// skip leaves out tests that read the tree, and reach nothing. TestAttackPeers reads all its output as another user; go
// test -cover would add a warning to it.
const skip = "^(TestAttackPeers|TestOldWords|TestDocsGo|TestDocsExitCodes|TestArchitectureNames|TestBudgets)$"

// block is a block of code without branches, named as in the profile.
type block struct {
	file, lines string
	statements  int
}

func main() {
	list := flag.String("list", "", "list what is not reached in this room")
	flag.Parse()
	if err := cover(*list); err != nil {
		fmt.Fprintln(os.Stderr, "cover:", err)
		os.Exit(1)
	}
}

func cover(list string) error {
	dir, err := os.MkdirTemp("", "cover-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	profile := filepath.Join(dir, "profile")
	args := []string{"test", "-short", "-skip", skip, "-coverpkg", module + strings.Join(rooms, ","+module),
		"-coverprofile", profile}
	for _, room := range append(slices.Clone(rooms), others...) {
		args = append(args, "./"+room)
	}
	cmd := exec.Command("go", args...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go test: %w\n%s", err, text)
	}
	f, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer f.Close()
	reached, err := read(bufio.NewScanner(f))
	if err != nil {
		return err
	}
	all, hit := map[string]int{}, map[string]int{}
	var missed []string
	for b, is := range reached {
		room := strings.TrimPrefix(path.Dir(b.file), module)
		all[room] += b.statements
		if is {
			hit[room] += b.statements
		} else if room == list {
			missed = append(missed, b.file+":"+b.lines)
		}
	}
	slices.Sort(missed)
	for _, m := range missed {
		fmt.Println(m)
	}
	var low []string
	for _, room := range rooms {
		percent := 100 * float64(hit[room]) / float64(max(all[room], 1))
		fmt.Printf("%-10s %5.1f %% of %d statements\n", room, percent, all[room])
		if percent < least {
			low = append(low, room)
		}
	}
	if len(low) > 0 {
		return fmt.Errorf("less than %d %% of %s", least, strings.Join(low, ", "))
	}
	return nil
}

// read reads a profile: each block, and whether any package's test reached it. A line is file:lines statements times.
func read(profile *bufio.Scanner) (map[block]bool, error) {
	reached := map[block]bool{}
	for profile.Scan() {
		line := profile.Text()
		if strings.HasPrefix(line, "mode:") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("profile: %.100q", line)
		}
		file, lines, _ := strings.Cut(fields[0], ":")
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("profile: %.100q", line)
		}
		b := block{file, lines, n}
		reached[b] = reached[b] || fields[2] != "0"
	}
	return reached, profile.Err()
}
