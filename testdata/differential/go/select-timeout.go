package main

import (
	"fmt"
	"time"
)

func main() {
	c := make(chan int)
	select {
	case <-c:
		fmt.Println("value")
	case <-time.After(20 * time.Millisecond):
		fmt.Println("timeout")
	}
}
