// Package web is the guest's part for fetching pages: the image's contents, and the program that fetches a page and
// turns it into Markdown. The program reads hostile pages, so only a machine runs it.
package web

import (
	_ "embed"
	"slices"

	"github.com/unitask/unitask/guest/python"
)

// Parts are the vendored parts of the image.
var Parts = slices.Concat(python.Parts, []string{
	"python3-lxml", "libxml2", "libxslt1.1", "libicu", "python3-lxml-html-clean", "python3-cssselect", "python3-chardet",
	"python3-readability", "python3-html2text", "python3-pypdf", "python3-typing-extensions",
})

// Folders are the folders with many files.
var Folders = slices.Concat(python.Folders, []string{python.Packages})

// Packed lists the compressed files.
var Packed = []string{python.Packages, "/usr/lib/TRIPLET/libicu", "*.py"}

// modules are imported in advance.
var modules = []string{"json", "re", "ssl", "zlib", "http.client", "html2text", "lxml.html", "readability"}

// Files returns the texts of the image, by their path in the guest.
func Files() map[string]string {
	files := python.Files()
	for name, text := range python.WarmFiles(false, modules) {
		files[name] = text
	}
	return files
}

// Program fetches a page. Its one argument is a Plan, and it prints a Page.
//
//go:embed fetch.py
var Program string

//go:embed rehearsal.py
var rehearsal string

// Rehearsal is the throw-away program.
var Rehearsal = python.Rehearsal + "import html2text\nimport readability\n" + rehearsal
