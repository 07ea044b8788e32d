package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Println("out")
	fmt.Fprintln(os.Stderr, "err")
	os.Exit(7)
}
