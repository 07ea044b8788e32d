package main

import (
	"fmt"
	o "os"
	"strings"
)

func main() { fmt.Println("import") }
