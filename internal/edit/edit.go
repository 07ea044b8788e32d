// Package edit compares words, for hints about misspelt names.
package edit

// Distance returns the Levenshtein distance of a and b in bytes.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := above
			if a[i] != b[j] {
				cost++
			}
			above = row[j+1]
			row[j+1] = min(cost, above+1, row[j]+1)
		}
	}
	return row[len(b)]
}
