package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

func main() {
	parent := os.Getppid()
	for _, s := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGPIPE,
		syscall.SIGVTALRM, syscall.SIGPROF,
		syscall.SIGIO, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGPWR, syscall.SIGWINCH, syscall.SIGURG, syscall.SIGCHLD,
		40,
	} {
		if err := syscall.Kill(parent, s); err != nil {
			fmt.Println(s, err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	fmt.Println("go run is still there:", os.Getppid() == parent)
	os.Exit(3)
}
