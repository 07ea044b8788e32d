package main

import (
	"fmt"
	"time"
)

func main() {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, name := range []string{"Europe/Berlin", "Asia/Kolkata"} {
		l, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		fmt.Println(at.In(l))
	}
	_, err := time.LoadLocation("No/Where")
	fmt.Println(err)
}
