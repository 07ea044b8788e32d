package main

import (
	"fmt"
	"math/big"
	"regexp"
)

func main() {
	re := regexp.MustCompile(`(\w+)@(\w+)\.com`)
	fmt.Println(re.FindAllStringSubmatch("ann@example.com, bob@test.com", -1))
	n := new(big.Int).Exp(big.NewInt(3), big.NewInt(200), nil)
	fmt.Println(n, n.BitLen())
}
