# Makes jobs of the documentation small enough for a test. Steps stay, since commands name them, and take a dozen milliseconds: commands have to reach a job
# while it runs, and a checkpoint that is due while another is stored is taken some steps later.
s/^\( *batch:\) 16$/\1 8/
s/^\( *sequence:\) 256$/\1 128/
s/^training:$/resources: {threads: 1}\
training:/
s/--train-tokenizer 4096/--train-tokenizer 512/
s/vocab: 4096/vocab: 512/
s/^model: tiny-hybrid/model: tiny-transformer/
s/^\( *preset:\) tiny-hybrid/\1 tiny-transformer/
