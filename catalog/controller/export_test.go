package controller

// MayAsk tells whether the guard lets an address pass.
var MayAsk = mayAsk
