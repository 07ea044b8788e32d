package main

import (
	"fmt"
	"os"
)

func main() {
	list := []int{1, 2, 3}
	fmt.Println(list[len(os.Args)+5])
}
