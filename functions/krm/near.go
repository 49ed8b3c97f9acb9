package krm

// Near reports whether a name is another one with a slip of the pen, or with two where the
// name has six letters or more.
func Near(name, other string) bool {
	return name != other && editDistance(name, other, tooFar(name)) < tooFar(name)
}

// tooFar is the number of slips that make another name.
func tooFar(name string) int {
	if len(name) < 6 {
		return 2
	}
	return 3
}

// Nearest is the first of the names with the fewest slips of the pen that are Near; "" for none.
func Nearest(name string, names []string) (nearest string) {
	distance := tooFar(name)
	for _, other := range names {
		if d := editDistance(name, other, distance); d < distance {
			nearest, distance = other, d
		}
	}
	return nearest
}

// editDistance counts letters that are missing, too many, replaced, or swapped with their
// neighbour (optimal string alignment). It is at most limit.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	var few [3][64]int // most names are shorter
	before, row, next := few[0][:], few[1][:], few[2][:]
	if len(b) >= len(row) {
		before, row, next = make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	}
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return min(row[len(b)], limit)
}
