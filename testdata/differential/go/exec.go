package main

import (
	"fmt"
	"os/exec"
)

func main() {
	out, err := exec.Command("sh", "-c", "cat; exit 3").CombinedOutput()
	fmt.Printf("%q %v\n", out, err)
	_, err = exec.Command("no-such-program").Output()
	fmt.Println(err)
}
