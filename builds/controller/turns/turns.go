// Package turns keeps builds waiting without holding up others: for the answers of
// servers, and for their turn. Namespaces take turns.
package turns

import "slices"

// Queue holds the items that wait, by namespace. Namespaces take turns, so that one of
// them delays another by one item, however many it has. The zero value is empty.
type Queue[T comparable] struct {
	order   []string // namespaces that wait, the next first
	waiting map[string][]T
}

// Add an item behind the others of its namespace.
func (q *Queue[T]) Add(namespace string, item T) {
	if q.waiting == nil {
		q.waiting = map[string][]T{}
	}
	if len(q.waiting[namespace]) == 0 {
		q.order = append(q.order, namespace)
	}
	q.waiting[namespace] = append(q.waiting[namespace], item)
}

// First item of a namespace that waits.
func (q *Queue[T]) First(namespace string) T { return q.waiting[namespace][0] }

// Next item, of the first namespace that may have one.
func (q *Queue[T]) Next(may func(namespace string) bool) (item T, ok bool) {
	i := slices.IndexFunc(q.order, may)
	if i < 0 {
		return item, false
	}
	namespace := q.order[i]
	item = q.waiting[namespace][0]
	q.order = append(slices.Delete(q.order, i, i+1), namespace)
	q.Remove(namespace, item)
	return item, true
}

// Replace an item by another in its position; false when it does not wait.
func (q *Queue[T]) Replace(namespace string, old, item T) bool {
	i := slices.Index(q.waiting[namespace], old)
	if i >= 0 {
		q.waiting[namespace][i] = item
	}
	return i >= 0
}

// Remove an item, if it waits.
func (q *Queue[T]) Remove(namespace string, item T) {
	i := slices.Index(q.waiting[namespace], item)
	if i < 0 {
		return
	}
	if q.waiting[namespace] = slices.Delete(q.waiting[namespace], i, i+1); len(q.waiting[namespace]) == 0 {
		delete(q.waiting, namespace)
		q.order = slices.DeleteFunc(q.order, func(n string) bool { return n == namespace })
	}
}

// Len is how many items wait.
func (q *Queue[T]) Len() (n int) {
	for _, items := range q.waiting {
		n += len(items)
	}
	return n
}
