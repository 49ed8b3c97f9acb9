cask "armature" do
  version "{{.Number}}"
  name "armature"
  desc "Render agents with their identity, build and deliver them"
  homepage "{{.Home}}"
{{range .Platforms}}
  on_{{if eq .OS "darwin"}}macos{{else}}{{.OS}}{{end}} do
    on_{{if eq .Arch "amd64"}}intel{{else}}arm{{end}} do
      url "{{.Armature.URL}}"
      sha256 "{{.Armature.Sum}}"
    end
  end
{{end}}
  binary "armature"
  binary "armature-fn"
  bash_completion "completions/armature.bash"
  zsh_completion "completions/armature.zsh"
  fish_completion "completions/armature.fish"
{{- range .Pages}}
  manpage "{{.}}"
{{- end}}
end
