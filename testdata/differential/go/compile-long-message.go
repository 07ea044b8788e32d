package main

import "fmt"

type reader interface {
	Read([]byte) (int, error)
	Close() error
}

type file struct{}

func (file) Read([]byte) int { return 0 }

func main() {
	var r reader = file{}
	fmt.Printf("%d\n", r, "/tmp/go-build")
	var s string = 1/2 + "import " + 3
}
