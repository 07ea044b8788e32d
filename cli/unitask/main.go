// Command unitask runs untrusted code in a fresh, one-shot virtual machine.
package main

import (
	"os"

	"github.com/unitask/unitask/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
}
