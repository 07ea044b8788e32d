package main

import (
	"fmt"
)

func main() {
	fmt.Println("hello, 世界", 1<<10)
}
