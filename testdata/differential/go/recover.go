package main

import (
	"fmt"
	"os"
)

func main() {
	defer func() {
		fmt.Println("recovered:", recover())
		os.Exit(3)
	}()
	var list []int
	_ = list[len(os.Args)]
}
