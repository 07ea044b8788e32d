package main

import "fmt"

func main() {
	defer fmt.Println("deferred")
//line template.html:7
	panic("from a template")
}
