package main

import (
	"fmt"

	"example.com/not/there"
)

func main() { fmt.Println(there.Value) }
