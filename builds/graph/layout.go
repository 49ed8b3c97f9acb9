package graph

// box is a task in the drawing, or a passage of an edge through a column.
type box struct{ x, y, w, h int }

func (b *box) middle() int { return b.y + b.h/2 }

// layout places the tasks of a pipeline. It counts in whole pixels, so that every
// machine draws the same.
type layout struct {
	boxes   []box // of the tasks in the order of the pipeline, then passages
	columns [][]int
	// edges are the boxes that each edge runs through, two or more.
	edges         [][]int
	width, height int
}

// Distances in pixels.
const (
	betweenColumns = 40
	betweenBoxes   = 18
	passage        = 6 // height of an edge in a column that it passes
)

// place puts each task right of those that it waits for (by the longest path), and
// finally tasks into a column of their own, the last one. The boxes of a column are in
// the order of the pipeline, around the same height.
func place(p *Pipeline, size func(*Task) (w, h int)) *layout {
	l := &layout{}
	column := columns(p)
	for i := range p.Tasks {
		w, h := size(&p.Tasks[i])
		l.add(column[i], box{w: w, h: h})
	}
	for i := range p.Tasks {
		for _, from := range p.Tasks[i].from {
			edge := []int{from}
			for at := column[from] + 1; at < column[i]; at++ {
				edge = append(edge, l.add(at, box{h: passage}))
			}
			l.edges = append(l.edges, append(edge, i))
		}
	}
	heights := make([]int, len(l.columns))
	for n, boxes := range l.columns {
		heights[n] = betweenBoxes * (len(boxes) - 1)
		for _, i := range boxes {
			heights[n] += l.boxes[i].h
		}
		l.height = max(l.height, heights[n])
	}
	for n, boxes := range l.columns {
		width, y := 0, (l.height-heights[n])/2
		for _, i := range boxes {
			width = max(width, l.boxes[i].w)
		}
		for _, i := range boxes {
			b := &l.boxes[i]
			if i >= len(p.Tasks) {
				b.w = width
			}
			b.x, b.y = l.width+(width-b.w)/2, y
			y += b.h + betweenBoxes
		}
		l.width += width + betweenColumns
	}
	l.width = max(0, l.width-betweenColumns)
	return l
}

// add puts a box at the end of a column, and gives its number.
func (l *layout) add(column int, b box) int {
	for len(l.columns) <= column {
		l.columns = append(l.columns, nil)
	}
	l.boxes = append(l.boxes, b)
	l.columns[column] = append(l.columns[column], len(l.boxes)-1)
	return len(l.boxes) - 1
}

// columns gives the column of each task.
func columns(p *Pipeline) []int {
	column, last := make([]int, len(p.Tasks)), -1
	for range p.Tasks { // the longest path is no longer
		for i, t := range p.Tasks {
			for _, from := range t.from {
				column[i] = min(max(column[i], column[from]+1), len(p.Tasks)-1)
			}
			if !t.Finally {
				last = max(last, column[i])
			}
		}
	}
	for i, t := range p.Tasks {
		if t.Finally {
			column[i] = last + 1
		}
	}
	return column
}
