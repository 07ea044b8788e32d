package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
)

// lanes does n runs in several processes of this program at once, each with a home and a seed of its own: what one kills is
// its own. What they print has their numbers before it.
func lanes(count, n int, seed uint64, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// An interrupt ends each with its table.
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	errs := make([]error, count)
	var all, printing sync.WaitGroup
	for i := range count {
		share := n / count
		if i < n%count {
			share++
		}
		if share == 0 {
			continue
		}
		cmd := exec.CommandContext(interrupted, self, append(args[:len(args):len(args)], "-at-once", "1", "-n", strconv.Itoa(share), "-seed", strconv.FormatUint(seed+uint64(i), 10))...)
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		read, write := io.Pipe()
		cmd.Stdout, cmd.Stderr = write, write
		printing.Go(func() {
			for lines := bufio.NewScanner(read); lines.Scan(); {
				fmt.Printf("%d: %s\n", i, lines.Text())
			}
			_, _ = io.Copy(io.Discard, read) // a line that is too long
		})
		all.Go(func() {
			defer write.Close()
			if err := cmd.Run(); err != nil && !errors.Is(err, context.Canceled) {
				errs[i] = fmt.Errorf("seed %d: %w", seed+uint64(i), err)
			}
		})
	}
	all.Wait()
	printing.Wait()
	return errors.Join(errs...)
}
