package unitask_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// docs/layers.svg shows the table of floors, which TestImportsPointDown compares with the imports (go test -run
// TestLayersPicture . -update).
func TestLayersPicture(t *testing.T) {
	const page = "docs/layers.svg"
	users := map[string]int{}
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			if strings.HasPrefix(i, module) {
				users[room(i)]++
			}
		}
	}
	want := drawFloors(floors, users)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is old: go test -run TestLayersPicture . -update", page)
	}
	for _, floor := range floors {
		for _, name := range floor {
			if !strings.Contains(want, ">"+title(name)+"<") {
				t.Errorf("%s does not show %s", page, title(name))
			}
		}
	}
}

// title is a package's name in the picture.
func title(name string) string {
	if name == "" {
		return "unitask"
	}
	return name
}

// drawFloors draws a row for each floor, the highest first, and a box for each package. A package that more packages
// import is darker.
func drawFloors(floors [][]string, users map[string]int) string {
	const width, boxHeight, gap, left, letter = 1000, 24, 6, 44, 7
	var body strings.Builder
	y := 40
	for level, floor := range slices.Backward(floors) {
		x, top := left, y
		for _, name := range floor {
			wide := len(title(name))*letter + 14
			if x+wide > width-gap {
				x, y = left, y+boxHeight+gap
			}
			shade := 240 - min(users[name], 20)*5
			fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="#%02x%02xff"/>`+
				`<text x="%d" y="%d">%s</text>`+"\n", x, y, wide, boxHeight, shade, (shade+255)/2, x+7, y+16, title(name))
			x += wide + gap
		}
		y += boxHeight + gap
		fmt.Fprintf(&body, `<text class="n" x="12" y="%d">%d</text><path d="M8 %dH%d"/>`+"\n", top+16, level, y, width-8)
		y += gap
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">
<title>The packages by floor: each imports lower floors only</title>
<style>text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}.n{fill:#656d76}path{stroke:#d0d7de}</style>
<rect width="%[1]d" height="%[2]d" fill="#fff"/>
<text class="n" x="12" y="22">A package imports lower floors only. A darker box has more users.</text>
%[3]s</svg>
`, width, y, body.String())
}
