// Package catalog says where the parts of the catalog are. The catalog lists the agents and tool
// servers that run in a cluster; programs ask it by HTTP and MCP, and people see it on the
// console's pages.
//
// An object, such as an AgentCard, takes this way:
//
//	controller  watches the objects, and asks what each names when that is due, with a quarter of
//	            the workers for each namespace
//	kinds       has a file for each kind of object: how it is read and asked, what is written into
//	            its status, and which rights that takes; the roles follow from them
//	ask         asks agents and servers, which are not trusted: with limits of bytes, memory, depth
//	            and time, and without addresses that lead into the node or the cloud; for commands,
//	            it asks a catalog's server
//	store       keeps the answers; Memory is for one process, store/database for SQLite and
//	            PostgreSQL
//
// A caller takes this one:
//
//	access      says who a caller is, by a token or by signing in with OpenID Connect, and what
//	            they may list
//	serve       answers programs: the HTTP API, the watch, the registry of MCP servers, and MCP
//	console     answers people: pages of agents, tool servers, builds and packages, which are
//	            brought up to date while they are open; console/resources reads what they show
//
// The types of the objects are in api (AgentCard), kinds/agentcard_kagenti.go (AgentCard in the
// group of the kagenti operator) and api/kagent (what the catalog reads and writes of kagent).
//
// To add a kind, write its file in kinds and a row in kinds.All, then run
// `UPDATE=1 go test ./catalog/kinds -run Roles`. To add a page, write its function in console, a
// row in routes, and its parts in console/templates.
package catalog
