package main

import "fmt"

type pair struct{ a, b int }

func pair() {}

func main() {
	x := 1
	x := 2
	fmt.Println(x / 0)
}
