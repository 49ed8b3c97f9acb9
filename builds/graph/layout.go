package graph

import (
	"slices"
)

// box is a task in the drawing, or a place where an edge passes a column.
type box struct {
	task       int // -1 for an edge that passes
	column     int
	x, y, w, h int
	// left and right are the boxes at the other ends of its edges.
	left, right []int
}

func (b *box) middle() int { return b.y + b.h/2 }

// layout places the tasks of a pipeline. Finally tasks have a column of their own,
// the last one.
type layout struct {
	boxes   []box
	columns [][]int
	finally []int
	// edges are the boxes that each edge runs through, two or more.
	edges         [][]int
	width, height int
}

// Distances in pixels.
const (
	betweenColumns = 40
	betweenBoxes   = 18
	passage        = 6 // height of an edge that passes
)

// place puts each task right of those that it waits for (by the longest path), orders
// columns so that few edges cross, and moves boxes to the height of their
// neighbours. It counts in whole pixels, so that every machine draws the same.
func place(p *Pipeline, size func(*Task) (w, h int)) *layout {
	l := &layout{boxes: make([]box, len(p.Tasks))}
	depth := depths(p)
	last := slices.Max(append(slices.Clone(depth), -1))
	l.columns = make([][]int, last+1)
	for i := range p.Tasks {
		b := &l.boxes[i]
		b.task, b.column = i, depth[i]
		b.w, b.h = size(&p.Tasks[i])
		if p.Tasks[i].Finally {
			l.finally = append(l.finally, i)
		} else {
			l.columns[depth[i]] = append(l.columns[depth[i]], i)
		}
	}
	for i := range p.Tasks {
		for _, from := range p.Tasks[i].from {
			l.connect(from, i)
		}
	}
	for range 4 {
		l.order(l.columns, func(b *box) []int { return b.left })
		l.order(reversed(l.columns), func(b *box) []int { return b.right })
	}
	for _, column := range l.columns {
		l.stack(column, nil)
	}
	for range 4 {
		for _, column := range l.columns {
			l.stack(column, func(b *box) []int { return b.left })
		}
		for _, column := range reversed(l.columns) {
			l.stack(column, func(b *box) []int { return b.right })
		}
	}
	l.finish()
	return l
}

// depths counts the tasks before each one. Finally tasks have -1.
func depths(p *Pipeline) []int {
	depth := make([]int, len(p.Tasks))
	for range p.Tasks { // the longest path is no longer
		for i, t := range p.Tasks {
			for _, from := range t.from {
				depth[i] = min(max(depth[i], depth[from]+1), len(p.Tasks)-1)
			}
		}
	}
	for i, t := range p.Tasks {
		if t.Finally {
			depth[i] = -1
		}
	}
	return depth
}

// connect draws an edge, through the columns between its ends.
func (l *layout) connect(from, to int) {
	edge := []int{from}
	for column := l.boxes[from].column + 1; column < l.boxes[to].column; column++ {
		l.boxes = append(l.boxes, box{task: -1, column: column, h: passage})
		l.columns[column] = append(l.columns[column], len(l.boxes)-1)
		edge = append(edge, len(l.boxes)-1)
	}
	edge = append(edge, to)
	for i, at := range edge[1:] {
		l.boxes[edge[i]].right = append(l.boxes[edge[i]].right, at)
		l.boxes[at].left = append(l.boxes[at].left, edge[i])
	}
	l.edges = append(l.edges, edge)
}

func reversed(columns [][]int) [][]int {
	out := slices.Clone(columns)
	slices.Reverse(out)
	return out
}

// order sorts each column by where its neighbours in the column before are.
func (l *layout) order(columns [][]int, neighbours func(*box) []int) {
	at := make([]int, len(l.boxes))
	for _, column := range columns {
		for i, b := range column {
			at[b] = 1000 * i
		}
	}
	for _, column := range columns {
		key := make(map[int]int)
		for _, b := range column {
			key[b] = at[b]
			if n := neighbours(&l.boxes[b]); len(n) > 0 {
				key[b] = mean(n, func(i int) int { return at[i] })
			}
		}
		slices.SortStableFunc(column, func(a, b int) int { return key[a] - key[b] })
		for i, b := range column {
			at[b] = 1000 * i
		}
	}
}

// stack sets the heights of the boxes of a column, each as near to the middle of its
// neighbours as the boxes above and below permit.
func (l *layout) stack(column []int, neighbours func(*box) []int) {
	bottom, off := -1<<30, 0
	for _, i := range column {
		b := &l.boxes[i]
		goal := b.y
		if neighbours != nil {
			if n := neighbours(b); len(n) > 0 {
				goal = mean(n, func(i int) int { return l.boxes[i].middle() }) - b.h/2
			}
		}
		b.y = max(goal, bottom+betweenBoxes)
		bottom = b.y + b.h
		off += b.y - goal
	}
	for _, i := range column {
		l.boxes[i].y -= off / len(column)
	}
}

func mean(of []int, value func(int) int) (sum int) {
	for _, i := range of {
		sum += value(i)
	}
	return sum / len(of)
}

// finish sets the places across and moves everything to where the drawing begins.
func (l *layout) finish() {
	top, bottom := 1<<30, 0
	for _, column := range l.columns {
		for _, i := range column {
			top = min(top, l.boxes[i].y)
		}
	}
	x := 0
	across := func(column []int) {
		width := 0
		for _, i := range column {
			width = max(width, l.boxes[i].w)
		}
		for _, i := range column {
			b := &l.boxes[i]
			b.x = x
			if b.w == 0 || b.task < 0 {
				b.w = width
			}
			b.x += (width - b.w) / 2
		}
		x += width + betweenColumns
	}
	for _, column := range l.columns {
		for _, i := range column {
			b := &l.boxes[i]
			b.y -= top
			bottom = max(bottom, b.y+b.h)
		}
		across(column)
	}
	if len(l.finally) > 0 {
		height := -betweenBoxes
		for _, i := range l.finally {
			height += l.boxes[i].h + betweenBoxes
		}
		y := max(0, (bottom-height)/2)
		for _, i := range l.finally {
			l.boxes[i].y = y
			y += l.boxes[i].h + betweenBoxes
			bottom = max(bottom, y-betweenBoxes)
		}
		across(l.finally)
	}
	l.width, l.height = max(0, x-betweenColumns), bottom
}
