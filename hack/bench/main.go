// Command bench compares `unitask run` with the same image booted by a bare
// QEMU command line, in one loop, and prints the ratio of the medians. What the
// bare boot does without: the record, the network, the agent's conversation,
// the jail.
//
//	go build -o bin/unitask ./cli/unitask && go run ./hack/bench [-kernel linux] [-n 10] [-max 1.15]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/partition/mbr"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/tfs"
	"github.com/unitask/unitask/vmm"
)

func main() {
	rounds := flag.Int("n", 10, "rounds")
	limit := flag.Float64("max", 0, "fail if the ratio is more than this; 0 never")
	program := flag.String("unitask", "bin/unitask", "the binary")
	kernel := flag.String("kernel", "linux", "linux or nanos")
	flag.Parse()
	ratio, err := bench(context.Background(), *program, image.Kernel(*kernel), *rounds)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if *limit > 0 && ratio > *limit {
		fmt.Fprintf(os.Stderr, "bench: %.2f is more than %.2f\n", ratio, *limit)
		os.Exit(1)
	}
}

func bench(ctx context.Context, program string, kernel image.Kernel, rounds int) (float64, error) {
	rt, err := unitask.Open(unitask.Options{})
	if err != nil {
		return 0, err
	}
	defer rt.Close()
	im, err := rt.Images().Ensure(ctx, kernel, image.HostArch())
	if err != nil {
		return 0, err
	}
	qemu, err := vmm.FindQEMU(ctx, vmm.Arch(im.Arch), nil)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "unitask-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	bare := linuxCommand(qemu.Path, im)
	if kernel == image.Nanos {
		if bare, err = nanosCommand(qemu.Path, im, filepath.Join(dir, "disk")); err != nil {
			return 0, err
		}
	}
	run := []string{program, "run", "--kernel", string(kernel), "--accel", "tcg", "--code", `console.log("warm")`}
	var bares, runs []time.Duration
	for i := range rounds + 1 {
		b, err := timed(ctx, bare)
		if err != nil {
			return 0, err
		}
		r, err := timed(ctx, run)
		if err != nil {
			return 0, err
		}
		if i == 0 {
			continue // the page cache is warm from here on
		}
		bares, runs = append(bares, b), append(runs, r)
		fmt.Printf("bare %4d ms   unitask %4d ms\n", b.Milliseconds(), r.Milliseconds())
	}
	ratio := float64(median(runs)) / float64(median(bares))
	fmt.Printf("median: bare %d ms, unitask %d ms, ratio %.2f\n", median(bares).Milliseconds(), median(runs).Milliseconds(), ratio)
	return ratio, nil
}

// machine is the command line that both kernels have.
func machine(qemu, options, disk, kernel string) []string {
	return []string{qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-accel", "tcg,tb-size=128", "-cpu", "max", "-m", "512",
		"-M", "microvm,rtc=on,isa-serial=on," + options, "-global", "virtio-mmio.force-legacy=false",
		"-device", "isa-debug-exit,iobase=0x501,iosize=4", "-kernel", kernel,
		"-drive", "id=d,format=raw,readonly=on,if=none,file=" + disk, "-device", "virtio-blk-device,drive=d",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-device,netdev=n", "-serial", "stdio"}
}

// linuxCommand boots the image to the end of one script with nothing around it.
func linuxCommand(qemu string, im *image.Image) []string {
	args := []string{"console=ttyS0", "quiet", "reboot=t", "panic=-1", "cryptomgr.notests", "ipv6.disable=1", "lsm=landlock", "audit=0", "init_on_alloc=0",
		"tsc_early_khz=" + strconv.Itoa(vmm.HostTSCKHz()), "unitask.direct=/unitask/lib/warm.js"}
	return append(machine(qemu, "acpi=on", im.Path(image.DiskFile), im.Path(image.KernelFile)),
		"-initrd", im.Path(image.InitrdFile), "-append", strings.Join(args, " "))
}

// nanosCommand does the same with a copy of the image whose program is the script
// and not the agent: Nanos takes no command line.
func nanosCommand(qemu string, im *image.Image, disk string) ([]string, error) {
	from, err := os.Open(im.Path(image.DiskFile))
	if err != nil {
		return nil, err
	}
	defer from.Close()
	st, err := from.Stat()
	if err != nil {
		return nil, err
	}
	old := file.New(from, true)
	table, err := mbr.Read(old, 512, 512)
	if err != nil {
		return nil, err
	}
	root := table.Partitions[0]
	for _, p := range table.Partitions {
		if p.Size > 0 {
			root = p
		}
	}
	files, err := tfs.Read(old, st.Size()-root.GetStart(), root.GetStart())
	if err != nil {
		return nil, err
	}
	to, err := os.Create(disk)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	const start = 2048
	if err := to.Truncate(start*512 + st.Size()); err != nil {
		return nil, err
	}
	storage := file.New(to, false)
	table.Partitions = []*mbr.Partition{{Index: 1, Type: mbr.Linux, Start: 64, Size: 64}, {Index: 2, Type: mbr.Linux, Start: start, Size: uint32(st.Size() / 512)}}
	if err := table.Write(to, st.Size()); err != nil {
		return nil, err
	}
	params := tfs.Params{Attributes: tfs.Tuple{
		{Name: "program", Value: "/usr/bin/node"}, {Name: "arguments", Value: []tfs.Value{"node", "/unitask/lib/warm.js"}},
		{Name: "environment", Value: tfs.Tuple{{Name: "HOME", Value: "/"}}}, {Name: "debug_exit", Value: "t"}, {Name: "en1", Value: files.Attributes().Get("en1")}}}
	fresh, err := tfs.Create(storage, st.Size(), start*512, params)
	if err != nil {
		return nil, err
	}
	if err := copyFiles(fresh, files); err != nil {
		return nil, err
	}
	return machine(qemu, "ioapic2=off", disk, im.Path(image.KernelFile)), fresh.Close()
}

func copyFiles(to, from *tfs.FileSystem) error {
	return fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir():
			return to.Mkdir(name)
		case d.Type() == fs.ModeSymlink:
			target, err := from.Readlink(name)
			if err != nil {
				return err
			}
			return to.Symlink(target, name)
		}
		src, err := from.Open(name)
		if err != nil {
			return err
		}
		dst, err := to.OpenFile(name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(dst, src, make([]byte, 1<<20))
		return err
	})
}

func timed(ctx context.Context, argv []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start := time.Now()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	took := time.Since(start)
	if !strings.Contains(string(out), "warm") {
		return 0, fmt.Errorf("%s: %v\n%s", argv[0], err, out)
	}
	return took, nil
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}
