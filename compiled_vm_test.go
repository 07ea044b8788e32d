package unitask_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/disuse"
)

// handsOut prints the digest of its own program. Then it tries to make others use a different program. It sends one to
// every descriptor of itself and of its user's processes, and overwrites the program and all compiled files.
const handsOut = `package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"
)

func main() {
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	fmt.Printf("%x\n", sha256.Sum256(text))
	evil := []byte("#!/bin/sh\necho evil\n")
	message := binary.BigEndian.AppendUint32([]byte{'P'}, uint32(len(evil)))
	message = append(message, evil...)
	frame := append(append(binary.BigEndian.AppendUint32(nil, uint32(len(evil))), 'p'), evil...)
	frame = append(frame, 0, 0, 0, 0, 'p')
	spoken, answers := 0, 0
	speak := func(fd int) {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
			return
		}
		spoken++
		syscall.SetNonblock(fd, true)
		for _, words := range [][]byte{message, frame, {'S'}, message} {
			syscall.Write(fd, words)
		}
		var answer [1]byte
		comes, limit := struct {
			fd            int32
			asked, became int16
		}{int32(fd), 1 /* POLLIN */, 0}, syscall.NsecToTimespec(100_000_000)
		syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&comes)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
		if n, _ := syscall.Read(fd, answer[:]); n > 0 {
			answers++
		}
	}
	for fd := 3; fd < 100; fd++ {
		speak(fd)
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		pid, _ := strconv.Atoi(filepath.Base(p))
		if pid == os.Getpid() {
			continue
		}
		of, _, e := syscall.Syscall(434, uintptr(pid), 0, 0) // pidfd_open
		if e != 0 {
			continue
		}
		for fd := range 100 {
			if got, _, e := syscall.Syscall(438, of, uintptr(fd), 0); e == 0 { // pidfd_getfd
				if fd > 2 {
					speak(int(got))
				}
				syscall.Close(int(got))
			}
		}
	}
	os.Remove(os.Args[0])
	os.WriteFile(os.Args[0], evil, 0o755)
	kept, _ := filepath.Glob("/home/user/.cache/go-build/*/*/*")
	for _, name := range kept {
		os.Remove(name)
		os.WriteFile(name, evil, 0o755)
	}
	fmt.Println("spoke:", spoken > 0, "answers:", answers)
	os.Exit(7)
}
`

// kept returns the entries of a home's compiled programs, and their digests.
func kept(t *testing.T, rt *unitask.Runtime) map[string]string {
	t.Helper()
	entries, err := filepath.Glob(filepath.Join(rt.Compiled().Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range entries {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text[sha256.Size:])
		found[filepath.Base(name)] = hex.EncodeToString(sum[:])
	}
	return found
}

// Code can't change its stored program, compiled in this run or before.
func TestAttackCompiled(t *testing.T) {
	needVM(t)
	slot(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	// With a directive the go command compiles it, and that command has the control channel.
	t.Run("by go", func(t *testing.T) { attackCompiled(t, rt, "//go:build linux\n\n"+handsOut, true) })
	if _, err := rt.Compiled().Prune(disuse.Rule{}); err != nil {
		t.Fatal(err)
	}
	t.Run("without", func(t *testing.T) { attackCompiled(t, rt, handsOut, false) })
}

func attackCompiled(t *testing.T, rt *unitask.Runtime, code string, spoken bool) {
	var digest string
	for _, how := range []string{unitask.CompiledKept, unitask.CompiledCached} {
		res, err := rt.Run(t.Context(), unitask.Request{Language: "go", Code: code, Cold: true}, unitask.IO{})
		if err != nil || res.Compiled != how || res.ExitCode != 1 || string(res.Stderr) != "exit status 7\n" {
			t.Fatalf("%v %q %+v %s", err, how, res, res.Stderr)
		}
		ran, rest, _ := strings.Cut(string(res.Stdout), "\n")
		if digest == "" {
			digest = ran
		}
		all := kept(t, rt)
		is := slices.Collect(maps.Values(all))
		if rest != fmt.Sprintf("spoke: %t answers: 0\n", spoken && how == unitask.CompiledKept) || len(is) != 1 {
			t.Errorf("%s: %q, kept %v", how, rest, all)
		}
		got := fmt.Sprintf("ran as first %t, kept as run %t", ran == digest, slices.Equal(is, []string{digest}))
		row := fmt.Sprintf("code hands out another program than its own, spoken with %t, which is then %s", spoken, how)
		attack.Check(t, row, "ran as first true, kept as run true", got)
		rec, err := rt.Runs().Get(res.RunID)
		if err != nil {
			t.Fatal(err)
		}
		var noted unitask.Result
		if err := json.Unmarshal(rec.Result, &noted); err != nil || noted.Compiled != how {
			t.Errorf("%v %s", err, rec.Result)
		}
	}
}

// The key of a stored program is the text, its name, its folder and the caller. A damaged program is compiled again,
// and a store without write access stops no run.
func TestGoCompiledBefore(t *testing.T) {
	needClones(t)
	if !long() {
		t.Skip("compiles eight programs in machines that are emulated: make long")
	}
	slot(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Image: "go"}); err != nil {
		t.Fatal(err)
	}
	const code = "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(len(os.Args)) }\n"
	hello := unitask.Request{Language: "go", Code: code}
	run := func(name, caller string, req unitask.Request, stdout string, exit int, how string) {
		t.Helper()
		res, err := rt.RunFor(t.Context(), unitask.Caller{Name: caller}, req, unitask.IO{})
		if err != nil || string(res.Stdout) != stdout || res.ExitCode != exit || res.Compiled != how {
			t.Errorf("%s: %v %q %q %+v", name, err, res.Stdout, res.Stderr, res)
		}
	}
	with := func(change func(*unitask.Request)) unitask.Request { req := hello; change(&req); return req }
	run("the first time", "a", hello, "1\n", 0, unitask.CompiledKept)
	run("again", "a", hello, "1\n", 0, unitask.CompiledCached)
	run("with arguments", "a", with(func(r *unitask.Request) { r.Args = []string{"x"} }), "2\n", 0, unitask.CompiledCached)
	run("in a fresh process", "a", with(func(r *unitask.Request) { r.FreshProcess = true }), "1\n", 0,
		unitask.CompiledCached)
	run("with a variable", "a", with(func(r *unitask.Request) { r.Env = map[string]string{"X": "1"} }), "1\n", 0, "")
	run("by another", "b", hello, "1\n", 0, unitask.CompiledKept)
	run("by another name", "a", with(func(r *unitask.Request) { r.Path = "other.go" }), "1\n", 0, unitask.CompiledKept)
	run("not well formed", "a", with(func(r *unitask.Request) { r.Code = "package main\n\nfunc main() { x }\n" }), "", 1,
		"")
	run("too large", "a", with(func(r *unitask.Request) {
		r.Code = "package main\n\nimport \"os\"\n\nvar x = [34 << 20]byte{1}\n\nfunc main() { println(x[len(os.Args)]) }\n"
	}), "", 0, "")
	for name := range kept(t, rt) {
		file := filepath.Join(rt.Compiled().Dir, name)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/2] ^= 1
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run("damaged", "a", hello, "1\n", 0, unitask.CompiledKept)
	run("mended", "a", hello, "1\n", 0, unitask.CompiledCached)
	if n, err := rt.Compiled().Prune(disuse.Rule{}); n.Count != 3 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if err := os.Remove(rt.Compiled().Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rt.Compiled().Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run("no store", "a", hello, "1\n", 0, "")
}

// ownDigest prints the digest of its own program, and the entries of /tmp.
const ownDigest = `package main

import (
	"crypto/sha256"
	"fmt"
	"os"
)

func main() {
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	fmt.Printf("%x\n", sha256.Sum256(text))
	all, _ := os.ReadDir("/tmp")
	mode, _ := os.Stat(os.Args[0])
	fmt.Println(len(all), mode.Mode())
}
`

// A clone runs an already compiled program, the same to the byte.
func TestGoCached(t *testing.T) {
	needClones(t)
	if !long() {
		t.Skip("compiles in a clone what TestAttackCompiled compiles in a cold machine: make long")
	}
	slot(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Image: "go"}); err != nil {
		t.Fatal(err)
	}
	var digest string
	for _, how := range []string{unitask.CompiledKept, unitask.CompiledCached} {
		res, err := rt.Run(t.Context(), unitask.Request{Language: "go", Code: ownDigest}, unitask.IO{})
		if err != nil || !res.Cloned || res.Compiled != how || res.ExitCode != 0 {
			t.Fatalf("%s: %v %+v %s", how, err, res, res.Stderr)
		}
		ran, rest, _ := strings.Cut(string(res.Stdout), "\n")
		if digest == "" {
			digest = ran
		}
		if all := kept(t, rt); ran != digest || rest != "1 -rwxr-xr-x\n" ||
			!slices.Contains(slices.Collect(maps.Values(all)), digest) {
			t.Errorf("%s: ran %s, first %s, %q, kept %v", how, ran, digest, rest, all)
		}
	}
}
