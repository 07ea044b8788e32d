//go:build unix

// Command picture runs real commands in a pseudo-terminal, and writes the screen to docs/picture.svg.
//
//	make picture
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/creack/pty"
)

const (
	page    = "docs/picture.svg"
	columns = 100
)

// commands are the commands in the picture, and their exit codes.
var commands = []struct {
	line string
	code int
}{
	{`unitask run --code 'console.log("hello from", process.platform, process.arch)'`, 0},
	{`unitask run --lang python --code 'import os; print("my files:", os.listdir("/root"))'`, 0},
	{`unitask run --code 'fetch("https://example.com").catch(e => process.exit(7))'`, 7},
	{`unitask runs ls --limit 3`, 0},
}

func main() {
	if err := record(); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// record runs all commands, with bin/unitask and a home for their records.
func record() error {
	bin, err := filepath.Abs("bin")
	if err != nil {
		return err
	}
	var shown bytes.Buffer
	for _, c := range commands {
		fmt.Fprintf(&shown, "\x1b[1m$ %s\x1b[0m\r\n", c.line)
		cmd := exec.Command("sh", "-c", c.line)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TERM=xterm")
		if err := run(cmd, &shown); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != c.code {
			return fmt.Errorf("%s: got %v and exit code %d, want %d\n%s", c.line, err, cmd.ProcessState.ExitCode(), c.code,
				shown.Bytes())
		}
	}
	return os.WriteFile(page, []byte(draw(screen(shown.String()))), 0o644)
}

// run runs a command in its own terminal.
func run(cmd *exec.Cmd, to io.Writer) error {
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: columns})
	if err != nil {
		return err
	}
	defer terminal.Close()
	_, _ = io.Copy(to, terminal) // ends with EIO when the other end is closed
	return cmd.Wait()
}
