//go:binary-only-package

package main

import "fmt"

func main() { fmt.Println("hi") }
