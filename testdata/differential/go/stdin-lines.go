package main

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	n := 0
	for s := bufio.NewScanner(os.Stdin); s.Scan(); n++ {
		fmt.Printf("%d:%q\n", n, s.Text())
	}
}
