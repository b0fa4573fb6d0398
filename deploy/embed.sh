# Prints a C++ file with the definition of DeployFiles(); arguments: the files, as deploy/….
printf '#include "deploy/files.h"\n\nnamespace nibble {\n\n'
printf 'absl::Span<const DeployFile> DeployFiles() {\n  static constexpr DeployFile kFiles[] = {\n'
for file in "$@"; do
  printf '{"%s", R"nibble(' "${file#deploy/}"
  cat "$file"
  printf ')nibble"},\n'
done
printf '  };\n  return kFiles;\n}\n\n}  // namespace nibble\n'
