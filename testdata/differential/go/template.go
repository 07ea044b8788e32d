package main

import (
	"fmt"
	"os"
	"text/tabwriter"
	"text/template"
)

func main() {
	t := template.Must(template.New("t").Parse("{{range .}}<{{.}}>\n{{end}}"))
	if err := t.Execute(os.Stdout, []string{"a", "b"}); err != nil {
		panic(err)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "one\ttwo\t")
	fmt.Fprintln(w, "three\t4\t")
	w.Flush()
}
