package main

import (
	"encoding/json"
	"fmt"
)

type item struct {
	Name string   `json:"name"`
	Tags []string `json:"tags,omitempty"`
}

func main() {
	b, err := json.MarshalIndent([]item{{"a", []string{"x"}}, {"<b>", nil}}, "", "  ")
	fmt.Println(string(b), err)
	var v item
	fmt.Println(json.Unmarshal([]byte(`{"name": 1}`), &v))
}
