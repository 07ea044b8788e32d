package main

import (
	"fmt"
	"os"
)

func main() {
	var m map[string]int
	m["x"] = len(os.Args)
	fmt.Println(m)
}
