package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	err := os.WriteFile("out.txt", []byte("a\nb\n"), 0o600)
	b, err2 := os.ReadFile("out.txt")
	st, err3 := os.Stat("out.txt")
	fmt.Println(err, string(b), err2, st.Mode(), st.Size(), err3)
	_, err = os.Open("/no/such")
	fmt.Println(err, errors.Is(err, os.ErrNotExist))
	_ = os.Remove("out.txt")
}
