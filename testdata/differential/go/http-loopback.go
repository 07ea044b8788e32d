package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
)

func main() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, r.Method, r.URL.Path)
	}))
	defer server.Close()
	resp, err := http.Get(server.URL + "/x")
	if err != nil {
		panic(err)
	}
	b, err := io.ReadAll(resp.Body)
	fmt.Println(resp.Status, string(b), err)
}
