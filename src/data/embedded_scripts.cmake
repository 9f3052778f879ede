# Embeds the Python scripts of this folder as headers into the build folder of the including CMakeLists.txt.
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/LazyEmbed.cmake")
lazy_embed(parquet_script.h kReadParquet "${CMAKE_CURRENT_LIST_DIR}/corpus/read_parquet.py")
lazy_embed(tokenizers_script.h kRunTokenizers "${CMAKE_CURRENT_LIST_DIR}/tokenizers/run_tokenizers.py")
