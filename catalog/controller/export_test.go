package controller

// SpecChanged reports whether an update wakes the catalog.
var SpecChanged = specChanged
