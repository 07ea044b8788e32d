package main

import (
	"fmt"
	"maps"
	"slices"
)

type number interface{ ~int | ~float64 }

func sum[T number](list ...T) (all T) {
	for _, v := range list {
		all += v
	}
	return all
}

func main() {
	fmt.Println(sum(1, 2, 3), sum(0.5, 0.25))
	for i, v := range slices.Backward([]string{"a", "b"}) {
		fmt.Println(i, v)
	}
	fmt.Println(slices.Sorted(maps.Keys(map[string]int{"z": 1, "a": 2})))
}
