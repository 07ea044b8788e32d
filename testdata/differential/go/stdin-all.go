package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

func main() {
	b, err := io.ReadAll(os.Stdin)
	fmt.Println(len(b), err)
	fmt.Printf("%x\n", sha256.Sum256(b))
}
