from lazy_attention_cli import main

main()
