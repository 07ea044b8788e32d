// Command seccomp makes the inputs for the jail's list of system calls.
//
//	go run ./hack/seccomp trace FILE...   calls in `strace -f -o FILE unitask run …`; ! marks what ends a machine
//	go run ./hack/seccomp kvm DIR...      vmm/jail/seccomp_kvm_linux.go, from unpacked sources of QEMU
//	go run ./hack/seccomp names ARCH      vmm/jail/names_linux_ARCH.go, from golang.org/x/sys
package main

import (
	"bufio"
	"fmt"
	"go/format"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/unitask/unitask/vmm/jail"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "seccomp:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 1 {
		switch args[0] {
		case "trace":
			return trace(args[1:])
		case "kvm":
			return kvm(args[1:])
		case "names":
			return names(args[1])
		}
	}
	return fmt.Errorf("usage: seccomp trace FILE... | kvm DIR... | names ARCH")
}

var (
	traceLine = regexp.MustCompile(`^(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed)(.*)$`)
	started   = regexp.MustCompile(`= (\d+)$`)
)

// trace counts the system calls of QEMU's processes in strace's output.
func trace(files []string) error {
	count := map[string]int{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		qemu := map[string]bool{}
		for s := bufio.NewScanner(f); s.Scan(); {
			m := traceLine.FindStringSubmatch(s.Text())
			if m == nil {
				continue
			}
			pid, call, rest := m[1], m[2], m[3]
			if call == "execve" && strings.Contains(rest, "qemu-system") {
				qemu[pid] = true
				continue
			}
			if !qemu[pid] {
				continue
			}
			count[call]++
			if child := started.FindStringSubmatch(rest); child != nil && strings.HasPrefix(call, "clone") {
				qemu[child[1]] = true
			}
		}
		f.Close()
	}
	for _, call := range slices.SortedFunc(maps.Keys(count), func(a, b string) int { return count[b] - count[a] }) {
		mark := " "
		if !jail.Listed(call) {
			mark = "!"
		}
		fmt.Printf("%s %8d %s\n", mark, count[call], call)
	}
	return nil
}

// The code of QEMU that our machines can reach: not Xen, not confidential guests, not Hyper-V.
var (
	kvmFiles = []string{"accel/kvm/*.c", "hw/virtio/*.c", "util/*.c", "hw/timer/*.c", "target/i386/kvm/*.c",
		"hw/i386/*.c", "hw/i386/kvm/*.c", "target/arm/kvm*.c", "hw/intc/*.c", "hw/arm/*.c"}
	notOurs = regexp.MustCompile(`xen|sev|tdx|hyperv|s390|spapr|xics|xive|loongarch|riscv|mips`)
	kvmUse  = []*regexp.Regexp{regexp.MustCompile(`\b(?:kvm_(?:vm_|vcpu_|device_)?)?ioctl\(([^;{}]*)`),
		regexp.MustCompile(`\b\w*(?:type|ioctl)\s*=\s*(KVM_[A-Z0-9_]+)`),
		regexp.MustCompile(`\?\s*(KVM_[A-Z0-9_]+\s*:\s*KVM_[A-Z0-9_]+)`)}
	kvmName    = regexp.MustCompile(`\bKVM_[A-Z0-9_]+\b`)
	kvmDefined = regexp.MustCompile(`(?m)^#define\s+(KVM_[A-Z0-9_]+)[\s\\]+_IO[WR]*\(\s*KVMIO\s*,\s*(0x[0-9a-f]+)`)
)

// kvmByMacro are requests that QEMU makes through macros, which the patterns do not find.
var kvmByMacro = []string{"KVM_ENABLE_CAP", "KVM_IRQ_LINE", "KVM_IRQ_LINE_STATUS"}

// kvmGuarded are requests that QEMU makes only for memory of confidential guests, although from files that our machines
// use. With files of memory in KVM, a compromised QEMU could fill any number of them.
var kvmGuarded = []string{"KVM_SET_MEMORY_ATTRIBUTES", "KVM_CREATE_GUEST_MEMFD"}

func kvm(dirs []string) error {
	used, numbers := map[string]bool{}, map[string]int64{}
	for _, name := range kvmByMacro {
		used[name] = true
	}
	for _, dir := range dirs {
		header, err := os.ReadFile(filepath.Join(dir, "linux-headers/linux/kvm.h"))
		if err != nil {
			return err
		}
		for _, m := range kvmDefined.FindAllStringSubmatch(string(header), -1) {
			if numbers[m[1]], err = strconv.ParseInt(m[2], 0, 64); err != nil {
				return err
			}
		}
		for _, pattern := range kvmFiles {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return err
			}
			for _, name := range files {
				if notOurs.MatchString(filepath.Base(name)) {
					continue
				}
				text, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				for _, use := range kvmUse {
					for _, m := range use.FindAllStringSubmatch(string(text), -1) {
						for _, request := range kvmName.FindAllString(m[1], -1) {
							used[request] = true
						}
					}
				}
			}
		}
	}
	for _, name := range kvmGuarded {
		delete(used, name)
	}
	byNumber := map[int64][]string{}
	for name := range used {
		if n, ok := numbers[name]; ok {
			byNumber[n] = append(byNumber[n], name)
		}
	}
	var out strings.Builder
	out.WriteString(
		"// Made by hack/seccomp from QEMU's sources.\n\npackage jail\n\n// kvmIOCTL is the type of KVM's requests " +
			"(KVMIO), at its place in a request's number.\nconst kvmIOCTL = 0xae << 8\n\n// kvmCalls are the KVM requests " +
			"that QEMU makes for machines like ours, by number. Other\n// requests fail as unknown.\nvar kvmCalls = []uint8{\n")
	for _, n := range slices.Sorted(maps.Keys(byNumber)) {
		slices.Sort(byNumber[n])
		fmt.Fprintf(&out, "%#02x, // %s\n", n, strings.Join(byNumber[n], ", "))
	}
	out.WriteString("}\n")
	return printGo(out.String())
}

var sysNumber = regexp.MustCompile(`(?m)^\s+SYS_([A-Z0-9_]+)\s+= (\d+)$`)

// names prints the names of an architecture's calls.
func names(arch string) error {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go"))
	if err != nil {
		return err
	}
	var list []string
	for _, m := range sysNumber.FindAllStringSubmatch(string(text), -1) {
		list = append(list, m[2]+" "+strings.ToLower(m[1]))
	}
	var out strings.Builder
	out.WriteString(
		"// Made by hack/seccomp from golang.org/x/sys.\n\npackage jail\n\n// callNames are the numbers and names of this " +
			"architecture's system calls.\nconst callNames = `" + strings.Join(list, "\n") + "`\n")
	return printGo(out.String())
}

func printGo(text string) error {
	source, err := format.Source([]byte(text))
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(source)
	return err
}
