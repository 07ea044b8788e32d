package main

import (
	"fmt"
	"syscall"
	"time"
)

func main() {
	fmt.Println("before")
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
	time.Sleep(time.Minute)
}
