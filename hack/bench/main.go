// Command bench compares `unitask run` with the same image booted by a bare
// QEMU command line, in one loop, and prints the ratio of the medians. What the
// bare boot does without: the record, the network, the agent's conversation,
// the jail.
//
//	go build -o bin/unitask ./cli/unitask && go run ./hack/bench [-n 10] [-max 1.15]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

func main() {
	rounds := flag.Int("n", 10, "rounds")
	limit := flag.Float64("max", 0, "fail if the ratio is more than this; 0 never")
	program := flag.String("unitask", "bin/unitask", "the binary")
	flag.Parse()
	ratio, err := bench(context.Background(), *program, *rounds)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if *limit > 0 && ratio > *limit {
		fmt.Fprintf(os.Stderr, "bench: %.2f is more than %.2f\n", ratio, *limit)
		os.Exit(1)
	}
}

func bench(ctx context.Context, program string, rounds int) (float64, error) {
	rt, err := unitask.Open(unitask.Options{})
	if err != nil {
		return 0, err
	}
	defer rt.Close()
	im, err := rt.Images().Ensure(ctx, image.Linux, image.HostArch())
	if err != nil {
		return 0, err
	}
	qemu, err := vmm.FindQEMU(ctx, vmm.Arch(im.Arch), nil)
	if err != nil {
		return 0, err
	}
	bare := bareCommand(qemu.Path, im)
	run := []string{program, "run", "--kernel", "linux", "--accel", "tcg", "--code", `console.log("warm")`}
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

// bareCommand boots the image to the end of one script with nothing around it.
func bareCommand(qemu string, im *image.Image) []string {
	args := []string{"console=ttyS0", "quiet", "reboot=t", "panic=-1", "cryptomgr.notests", "ipv6.disable=1", "lsm=landlock", "audit=0", "init_on_alloc=0",
		"tsc_early_khz=" + strconv.Itoa(vmm.HostTSCKHz()), "unitask.direct=/unitask/lib/warm.js"}
	return []string{qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-accel", "tcg,tb-size=128", "-cpu", "max", "-m", "512",
		"-M", "microvm,rtc=on,isa-serial=on,acpi=on", "-global", "virtio-mmio.force-legacy=false",
		"-device", "isa-debug-exit,iobase=0x501,iosize=4",
		"-kernel", im.Path(image.KernelFile), "-initrd", im.Path(image.InitrdFile), "-append", strings.Join(args, " "),
		"-drive", "id=d,format=raw,readonly=on,if=none,file=" + im.Path(image.DiskFile), "-device", "virtio-blk-device,drive=d",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-device,netdev=n", "-serial", "stdio"}
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
