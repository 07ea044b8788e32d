package main

import (
	"fmt"
)

type e struct{ n int }

func (x e) Error() string { return fmt.Sprint("e ", x.n) }

func deep(n int) {
	if n == 0 {
		panic(e{4})
	}
	deep(n - 1)
}

func main() {
	deep(3)
}
