//go:debug panicnil=1

package main

import "fmt"

func main() {
	defer func() { fmt.Println(recover()) }()
	panic(nil)
}
