package main

import (
	"fmt"
	"os"
)

func main() {
	for i, a := range os.Args[1:] {
		fmt.Printf("%d %q\n", i, a)
	}
	fmt.Println(len(os.Args))
}
